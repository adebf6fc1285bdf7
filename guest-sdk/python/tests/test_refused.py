"""Refused uses are counted where the author's code is behind them, and not where a package looks at the machine while it is
imported."""

import contextlib
import errno
import io
import unittest
from typing import Any
from unittest import mock

from rollout_sdk import _failure, _refused

AUTHORS = "/0/agent.py"
PACKAGE = "/1/package/__init__.py"
INNER = "/1/package/inner.py"

# Refuses in place of a function of the standard library, which a component has another for.
USE = compile("def use():\n    note('network', 'socket.socket.bind')", "/3/rollout_sdk/_made.py", "exec")

# Imports or calls what comes next.
FOLLOWING = "following()"
PROBE = "try:\n    use()\nexcept OSError:\n    pass"


def defined(code: Any, name: str, **scope: Any) -> Any:
    """Returns a function that the code defines."""
    exec(code, scope)
    return scope[name]


class Probing(unittest.TestCase):
    def setUp(self) -> None:
        roots = _failure.roots()
        self.addCleanup(_failure.set_roots, roots)
        _failure.set_roots([("/0/", ""), ("/python/", "python/"), ("/1/", "")])
        for held in (_refused._at_import, _refused._of_dependencies, _refused._counts, _refused._places):
            patched = mock.patch.dict(held, clear=True)
            patched.start()
            self.addCleanup(patched.stop)
        patched_host = mock.patch.object(_refused._host, "refused")
        self.host = patched_host.start()
        self.addCleanup(patched_host.stop)
        self.addCleanup(_refused.end)
        self.use = defined(USE, "use", note=_refused.note)
        self.said = ""

    def run_modules(self, *modules: tuple[str, str], use: Any = None) -> None:
        """Runs the text of the first module; `following` in it runs the second, and so on. `use` is refused."""

        def run(rest: tuple[tuple[str, str], ...]) -> None:
            (path, text), *others = rest
            scope = {"use": use or self.use, "following": lambda: run(tuple(others))}
            exec(compile(text, path, "exec"), scope)

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            run(modules)
        self.said += said.getvalue()

    def reported(self) -> list[tuple[Any, ...]]:
        return [call.args for call in self.host.call_args_list]

    def test_a_package_that_probes_while_it_is_imported_is_noted_at_the_build_and_counted_in_no_rollout(self) -> None:
        # As urllib3 does, which looks whether there is IPv6.
        probe = f"def probe():\n    {PROBE.replace(chr(10), chr(10) + '    ')}\nprobe()"
        self.run_modules((AUTHORS, FOLLOWING), (PACKAGE, FOLLOWING), (INNER, f"{probe}\n{probe}"))
        _refused.begin()
        # One that the author's code imports late.
        self.run_modules((AUTHORS, f"def grade():\n    {FOLLOWING}\ngrade()"), (PACKAGE, probe))
        _refused.end()
        self.assertEqual(self.reported(), [])
        noted = "note: package/inner.py:3 tried to use the network while it was imported, which no rollout counts\n"
        self.assertEqual(self.said, noted)

    def test_what_the_authors_module_does_while_it_is_imported_is_counted_in_each_rollout(self) -> None:
        self.run_modules((AUTHORS, f"\n{PROBE}"))
        for _ in range(2):
            _refused.begin()
            _refused.end()
        at = "agent.py:3, in <module>: socket.socket.bind, while it was imported"
        self.assertEqual(self.reported(), [("network", 1, at)] * 2)
        self.assertIn("warning: agent.py:3, in <module>", self.said)

    def test_what_a_package_does_when_the_author_calls_it_is_the_authors(self) -> None:
        connect = defined(compile("def connect():\n    use()", PACKAGE, "exec"), "connect", use=self.use)
        self.run_modules((AUTHORS, "use()"), use=connect)
        _refused.begin()
        self.run_modules((AUTHORS, "def grade():\n    use()\ngrade()"), use=connect)
        _refused.end()
        self.assertEqual([count for _, count, _ in self.reported()], [1, 1])

    def test_code_that_came_with_the_rollout_is_counted_wherever_it_runs(self) -> None:
        _refused.begin()
        self.run_modules((AUTHORS, FOLLOWING), (PACKAGE, FOLLOWING), ("<string>", PROBE))
        _refused.end()
        self.assertEqual(len(self.reported()), 1)

    def test_a_socket_or_a_name_that_an_imported_package_tries_never_reaches_the_host(self) -> None:
        made: list[str] = []

        def real(*_: Any) -> None:
            made.append("asked")
            raise PermissionError(errno.EACCES, "denied")

        _refused.begin()
        for use in (_refused._without_sockets(real), _refused._without_network(real, "socket.getaddrinfo")):
            made.clear()
            self.run_modules((AUTHORS, FOLLOWING), (PACKAGE, PROBE), use=use)
            self.assertEqual(made, [])
            with self.assertRaisesRegex(OSError, "there is no network in a component"):
                self.run_modules((AUTHORS, "use()"), use=use)
            self.assertEqual(made, ["asked"])
        _refused.end()


if __name__ == "__main__":
    unittest.main()
