"""What programs ask of the system, as it is in a component.

Of functions, those that Python has on every system, and those of users that it has on every one
that is `posix`: programs call them without asking whether they are there. They say what is true in a
component, or raise what they raise elsewhere where it cannot be done. Nothing does as if.
"""

from __future__ import annotations

import errno
import importlib
import locale
import os
import signal
import sys
import threading
import time
from types import ModuleType
from typing import Any, NamedTuple

from ._older import Never


def install() -> None:
    """Puts this where Python has what is not so, or nothing."""
    modules: dict[str, Any] = {each.__name__: each for each in (locale, os, signal, threading, time)}
    modules["locale"].setlocale = _set_locale
    modules["os"].get_terminal_size = modules["os"].getlogin = _no_terminal
    for name in ("getuid", "geteuid", "getgid", "getegid"):
        setattr(modules["os"], name, _nobody)
    modules["threading"].get_native_id = threading.get_ident
    modules["signal"].valid_signals = lambda: set(signal.Signals)
    modules["signal"].siginterrupt = _interrupt_nothing
    # What one thread computes is what all do.
    modules["time"].thread_time, modules["time"].thread_time_ns = time.process_time, time.process_time_ns
    modules["time"].tzset = _set_time_zone
    try:
        importlib.import_module("pwd")
    except ImportError:
        sys.modules["pwd"] = _pwd()


# The C library takes every name for a locale and every text for a time zone, and does as for the first of these.
_LOCALES = ("", "C", "POSIX", "C.UTF-8", "C.utf8")
_ZONES = ("", "UTC", "UTC0", "GMT", "GMT0", "Etc/UTC", "Etc/GMT")

_real_set_locale = locale.setlocale


_Error = locale.Error


def _set_locale(category: int, locale: Any = None) -> str:
    """`locale.setlocale`."""
    if locale is not None:
        wanted = locale if isinstance(locale, str) else ".".join(each for each in locale if each)
        if any(each.partition("=")[2] not in _LOCALES if "=" in each else each not in _LOCALES for each in wanted.split(";")):
            raise _Error(f"unsupported locale setting: a component has C and no {wanted}")
    return _real_set_locale(category, locale)


def _set_time_zone() -> None:
    """`time.tzset`: the clock shows UTC."""
    zone = os.environ.get("TZ", "").removeprefix(":")
    if zone not in _ZONES:
        raise NotImplementedError(f"time.tzset: a component's clock shows UTC, not {zone}; zoneinfo, with tzdata, has other zones")


def _no_terminal(*_: Any) -> Never:
    raise OSError(errno.ENOTTY, "a component has no terminal")


def _interrupt_nothing(number: int, flag: bool, /) -> None:
    """`signal.siginterrupt`: no call of the system is ever interrupted."""


# Whoever runs in a component is nobody, whose home is nowhere.
_NOBODY = 65534


def _nobody() -> int:
    return _NOBODY


class _Passwd(NamedTuple):
    pw_name: str
    pw_passwd: str
    pw_uid: int
    pw_gid: int
    pw_gecos: str
    pw_dir: str
    pw_shell: str


def _pwd() -> ModuleType:
    module: Any = ModuleType("pwd", "The users of a component: nobody.")
    module.struct_passwd = _Passwd
    nobody = _Passwd("nobody", "x", _NOBODY, _NOBODY, "nobody", "/nonexistent", "/usr/sbin/nologin")

    def find(wanted: object, known: object) -> Any:
        if wanted != known:
            raise KeyError(f"a component has one user, nobody, and not {wanted!r}")
        return nobody

    def by_uid(uid: int) -> Any:
        return find(uid, _NOBODY)

    def by_name(name: str) -> Any:
        return find(name, "nobody")

    module.getpwuid, module.getpwnam, module.getpwall = by_uid, by_name, lambda: [nobody]
    return module  # type: ignore[no-any-return]
