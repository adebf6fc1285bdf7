"""System functions as they behave in a component.

Covered are the functions that Python has on every system, and those about users that it has on every `posix` system:
programs call them without testing for them. They return facts about a component, or raise the exception that they raise
elsewhere if the operation is impossible. None pretends to succeed."""

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
    """Replaces Python's functions that are wrong or missing in a component."""
    modules: dict[str, Any] = {each.__name__: each for each in (locale, os, signal, threading, time)}
    modules["locale"].setlocale = _set_locale
    modules["os"].get_terminal_size = modules["os"].getlogin = _no_terminal
    for name in ("getuid", "geteuid", "getgid", "getegid"):
        setattr(modules["os"], name, _user_id)
    modules["threading"].get_native_id = threading.get_ident
    modules["signal"].valid_signals = lambda: set(signal.Signals)
    modules["signal"].siginterrupt = _interrupt_nothing
    # There is one thread, so its CPU time is that of the process.
    modules["time"].thread_time, modules["time"].thread_time_ns = time.process_time, time.process_time_ns
    modules["time"].tzset = _set_time_zone
    try:
        importlib.import_module("pwd")
    except ImportError:
        sys.modules["pwd"] = _pwd()


# The C library accepts any name of a locale or time zone, and treats it as the first of these.
_LOCALES = ("", "C", "POSIX", "C.UTF-8", "C.utf8")
_ZONES = ("", "UTC", "UTC0", "GMT", "GMT0", "Etc/UTC", "Etc/GMT")

_real_set_locale = locale.setlocale


_Error = locale.Error


def _set_locale(category: int, locale: Any = None) -> str:
    """Implements `locale.setlocale`."""
    if locale is not None:
        wanted = locale if isinstance(locale, str) else ".".join(each for each in locale if each)
        if any(each.partition("=")[2] not in _LOCALES if "=" in each else each not in _LOCALES for each in wanted.split(";")):
            raise _Error(f"unsupported locale setting: a component has C and no {wanted}")
    return _real_set_locale(category, locale)


def _set_time_zone() -> None:
    """Implements `time.tzset`: the clock shows UTC."""
    zone = os.environ.get("TZ", "").removeprefix(":")
    if zone not in _ZONES:
        raise NotImplementedError(f"time.tzset: a component's clock shows UTC, not {zone}; zoneinfo, with tzdata, has other zones")


def _no_terminal(*_: Any) -> Never:
    raise OSError(errno.ENOTTY, "a component has no terminal")


def _interrupt_nothing(number: int, flag: bool, /) -> None:
    """Implements `signal.siginterrupt`: system calls are never interrupted."""


# The user of a component is `nobody`, without a home directory.
_NOBODY = 65534


def _user_id() -> int:
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
