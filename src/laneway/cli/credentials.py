"""The token that a command sends: typed without being shown, from standard input, or from a file of its owner alone.

Everybody on a machine can read a command line, and every process of a user the environment of the others: the shell
of an agent can, too. A command overwrites what it was given that way as soon as it runs, which leaves a moment. The
ways of this module leave none.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Final

from laneway.errors import UsageError

__all__ = ("ASK", "Given", "ask_token", "prompt", "token_of")

Given = tuple[str, bool]
"""The value of an option, and whether the command line names it (otherwise the environment, or nobody)."""

ASK: Final = "-"
LONGEST: Final = 4096


def token_of(given: Mapping[str, Given]) -> str:
    """The token that the options `token` and `token_file` mean; what the command line says comes first."""
    token, is_token_named = given.get("token", ("", False))
    file, is_file_named = given.get("token_file", ("", False))
    if is_token_named and is_file_named and token and file:
        raise UsageError("two tokens are given", hint="leave out --token or --token-file")
    if token and not (is_file_named and file):
        return _asked() if token == ASK else token
    return _from_file(file) if file else ""


def prompt() -> Callable[[], str] | None:
    """What asks a person for a token, if there is one at a terminal."""
    return ask_token if sys.stdin.isatty() and sys.stderr.isatty() else None


def ask_token() -> str:
    """Ask for a token at the terminal; what is typed is not shown."""
    import getpass  # only who is asked needs these
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return _checked(getpass.getpass("Token: "), "the prompt")
        except (getpass.GetPassWarning, EOFError):
            raise UsageError("no token was typed", hint="try it in a terminal, or with --token-file FILE") from None


def _asked() -> str:
    if sys.stdin.isatty():
        return ask_token()
    return _checked(sys.stdin.readline(LONGEST + 1), "standard input")


def _from_file(file: str) -> str:
    """The token in a file, or in what a shell makes of `<(…)`. One that others can read is no secret any more."""
    path = os.path.expanduser(file)
    try:
        with open(path, "rb") as opened:
            about = os.fstat(opened.fileno())
            if os.name == "posix" and stat.S_IMODE(about.st_mode) & 0o077:
                raise UsageError(
                    f"others may read the token in {file} (mode {stat.S_IMODE(about.st_mode):03o})",
                    hint=f"chmod 600 {file}, and make a new token if it matters who has seen this one",
                )
            content = opened.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"the token in {file} cannot be read: {error.strerror}", hint="see --token-file") from None
    return _checked(content.decode("utf-8", "replace"), file)


def _checked(text: str, where: str) -> str:
    """Never says what it was: it may be a secret of something else."""
    token = text.strip()
    if not token or len(text) > LONGEST or len(token.split()) > 1:
        raise UsageError(f"{where} has no token", hint="it is one line: lw_…")
    return token
