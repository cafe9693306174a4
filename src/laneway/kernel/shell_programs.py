"""What is known of programs: which run what they are told, which only read text, which are told programs of their own.

A program that is in no table may run its arguments, so they are looked at as if it did. The tables only say for which
programs that is needless, and for which it is not enough.
"""

from __future__ import annotations

import re

__all__ = ("is_code_safe", "is_quiet", "known_name")

SHELLS = frozenset(
    [
        "ash",
        "bash",
        "csh",
        "dash",
        "elvish",
        "fish",
        "ksh",
        "lksh",
        "mksh",
        "nu",
        "oksh",
        "osh",
        "pwsh",
        "rbash",
        "sh",
        "tcsh",
        "xonsh",
        "yash",
        "zsh",
    ]
)
"""Programs that read the language of a shell: from `-c`, from a file, or from their input."""

_TEXT_RUNNERS = "at batch cmd coproc dtach eval fc mosh powershell rsh runuser screen script sg ssh su tmux trap watch"
TEXT_RUNNERS = frozenset(_TEXT_RUNNERS.split())
"""Programs whose arguments, put together, are a text that a shell reads."""

RUNNERS = {
    "builtin": "",
    "busybox": None,
    "chroot": None,
    "command": "",
    "doas": "uC",
    "env": "uC",
    "exec": "a",
    "flock": "wE",
    "ionice": "cnpPu",
    "nice": "n",
    "nohup": "",
    "nsenter": None,
    "parallel": None,
    "pkexec": None,
    "setsid": "",
    "stdbuf": "ioe",
    "sudo": "ugpCcrtTUDRh",
    "time": "fo",
    "timeout": "ks",
    "toybox": None,
    "unshare": None,
    "xargs": "EILnPsda",
}
"""Programs that run another one, and the letters of their options that take a word; None if that is not known."""

NEEDS_PROGRAM = frozenset({"chroot", "doas", "nsenter", "parallel", "pkexec", "sudo", "unshare"})
"""Those that start a shell when they are given no program."""

ODD = {
    "alias": r".*=",
    "bind": "",
    "compgen": "",
    "complete": "",
    "enable": r"-.*[fd]",
    "env": r"-[^-]*S|--s",
    "git": r"ext::",
    "hash": r"-.*p",
    "history": r"-.*[sarnp]",
    "mapfile": r"-.*C",
    "readarray": r"-.*C",
    "shopt": r"(expand_aliases|extglob|extdebug|extquote|compat.*|sourcepath|-o)$",
}
"""Programs that change what words mean when one of their words begins like that: what follows cannot be read."""

INTERPRETERS = {
    "python": r"-[bBdEhiIOPqsSuvVx?]+$",
    "pypy": r"-[bBdEhiIOPqsSuvVx?]+$",
    "perl": r"-[wWtTv]+$",
    "ruby": r"-[wWv]+$",
    "node": r"--(?!eval|print|require|import|loader|experimental-loader)[\w-]+(=|$)",
    "nodejs": r"--(?!eval|print|require|import|loader|experimental-loader)[\w-]+(=|$)",
    "php": r"-[qv]$",
    "lua": r"-[v]$",
    "luajit": r"-[v]$",
    "rscript": r"--(?!e)[\w-]+",
    "tclsh": r"(?!)",
    "wish": r"(?!)",
    "expect": r"(?!)",
    "guile": r"(?!)",
    "julia": r"--(?!eval|print|load)[\w-]+(=|$)",
    "osascript": r"(?!)",
    "jshell": r"(?!)",
    "ghci": r"(?!)",
}
"""Languages that can run anything: a file of theirs is a file, but a text of theirs in a command cannot be read. Each
with its options that bring no text along."""

_QUIET = """
: [ [[ arch b2sum base32 base64 basename bg break bunzip2 bzip2 cal cargo cat cd chgrp chmod chown cksum clear cmp col
column comm continue cp csplit curl cut date dd declare df diff dig dirname dirs disown du echo egrep exit expand expr
export factor false fg fgrep file fmt fold free getent getopts grep groups gunzip gzip head hexdump host hostname id
install jobs join jq kill killall let ln local locale logname ls lsblk lscpu lsof md5sum mkdir mkfifo mktemp more mv nl
nproc nslookup od paste pgrep ping pip pkill popd pr printenv printf ps pstree pushd pwd read readlink readonly realpath
return rev rg rmdir seq set sha1sum sha224sum sha256sum sha384sum sha512sum shasum shift shuf sleep sort split stat
strings sum sync tac tail tar tee test times touch tput tr tree true truncate tsort tty type typeset ulimit umask
unalias uname unexpand uniq unlink unset unxz unzip uptime users vdir w wait wc wget whereis which who whoami xxd xz
xzcat yes zcat zgrep zip zstd git apt apt-get brew dnf yum npm yarn pnpm gem pip3
"""
QUIET = frozenset(_QUIET.split())
"""Programs that take their arguments for names or text, and run none of them."""

_UNLESS = {
    "cargo": r"(run|test|bench|watch|\+|--config|install)",
    "curl": r"(?!)",
    "git": r"(-c$|--config|--exec|-x|-O|--open|--ext|--upload|--receive|--.*filter|ext::|-u$|--paginate|"
    r"(bisect|config|submodule|filter-branch|difftool|mergetool|rebase|credential.*|hook|for-each-repo|"
    r"send-email|daemon|shell|remote-.*|instaweb|help|web--browse|alias.*|maintenance|p4|svn|archive)$)",
    "install": r"(--strip|-.*s)",
    "npm": r"(exec|x|run|test|start|explore|config|set|--script|--node)",
    "pnpm": r"(exec|dlx|run|test|start|config)",
    "yarn": r"(exec|dlx|run|test|start|config)",
    "brew": r"(sh|ruby|irb|bundle)",
    "apt": r"-o|--option|-c",
    "apt-get": r"-o|--option|-c",
    "rg": r"--pre|--hostname",
    "sort": r"--compress",
    "split": r"--filter",
    "tar": r"(--[a-z-]*(command|program|action|script)|-[a-zA-Z]*[IF]|[a-zA-Z]*[IF]|--rmt|--rsh|--info)",
    "wget": r"(-e|--execute|--use-askpass|-[a-zA-Z]*e)",
    "zip": r"(-T|--unzip|-.*T)",
}
_UNLESS_READ = {name: re.compile(text) for name, text in _UNLESS.items()}

_EVALUATING = "[ [[ declare export let local printf read readonly set test typeset unset wait"
EVALUATING = frozenset(_EVALUATING.split())
"""Builtins that work out what is in square brackets, substitutions in there included, though it was in quotes."""

_VERSION = re.compile(r"-?[\d.]+$")
_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\\n])*/I?)"
_SED = re.compile(
    rf"[\s;{{}}]*(?:{_SED_ADDRESS}(?:\s*,\s*[+~]?{_SED_ADDRESS})?)?\s*!?\s*"
    r"(?:s([^\w\s\\;{}])(?:\\[^\n]|(?!\1)[^\\\n])*\1(?:\\[^\n]|(?!\1)[^\\\n])*\1[gpiI0-9]*|"
    r"y/(?:\\[^\n]|[^\\/\n])*/(?:\\[^\n]|[^\\/\n])*/|[aic]\s*[^\s\\][^\\\n]*|[btT:]\s*\w*|[pdDqQnNgGhHxPl=]\d*)"
    r"\s*(?=[;}\n]|$)"
)


def known_name(word: str) -> str:
    """The name by which the tables know a program: without its folder and its version, in small letters."""
    name = word.rpartition("/")[2].casefold()
    return _VERSION.sub("", name) or name


def is_quiet(name: str, words: list[str]) -> bool:
    """Whether a program runs nothing of what it is told here. The name is the whole one: `uname26` is not `uname`."""
    if name not in QUIET:
        return False
    unless = _UNLESS_READ.get(name)
    return unless is None or not any(unless.match(word) for word in words[1:])


def is_code_safe(name: str, words: list[str], unsure: set[int]) -> bool | None:
    """Whether a text in the language of `awk`, `sed` or `make` runs nothing; None if the program is none of these."""
    if name in ("awk", "gawk", "mawk", "nawk"):
        return _is_awk_safe(words, unsure)
    if name in ("sed", "gsed"):
        return _is_sed_safe(words, unsure)
    if name in ("make", "gmake"):
        return not any(
            re.match(r"--eval|-E|-f-|--(make)?file=-|SHELL=|\.?SHELLFLAGS=|MAKEFILES=|MAKEFLAGS=", word)
            or (re.match(r"-\w*f$|--(make)?file$", word) and _is_stream(words, at + 1, unsure))
            for at, word in enumerate(words)
        )
    return None


def _is_stream(words: list[str], at: int, unsure: set[int]) -> bool:
    """Whether a word is no plain name of a file."""
    return at >= len(words) or at in unsure or words[at] == "-" or words[at].startswith(("/dev/", "/proc/"))


def _is_awk_safe(words: list[str], unsure: set[int]) -> bool:
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] in ("-F", "-v"):
            at += 1
        elif words[at] == "-f":
            return not _is_stream(words, at + 1, unsure)
        elif not re.match(r"-[Fv].|--version$|--$", words[at]):
            return False
        at += 1
    if at >= len(words):
        return True
    code = words[at].replace("||", "")
    return at not in unsure and not any(mark in code for mark in ("|", "@", "system", "\\\n"))


def _is_sed_safe(words: list[str], unsure: set[int]) -> bool:
    codes: list[int] = []
    first, at, is_told = 0, 1, False
    while at < len(words):
        word = words[at]
        if word in ("-e", "--expression"):
            codes.append(at + 1)
            at, is_told = at + 1, True
        elif word in ("-f", "--file"):
            if _is_stream(words, at + 1, unsure):
                return False
            at, is_told = at + 1, True
        elif word.startswith("-") and word != "-":
            if at in unsure or not re.match(r"-[nErszu]+$|-[nErszu]*i[.\w]*$|--(?!ex|fi)[\w-]+(=|$)", word):
                return False
        elif not first:
            first = at
        at += 1
    if not is_told and first:
        codes.append(first)
    return all(at < len(words) and at not in unsure and _is_sed_text(words[at]) for at in codes)


def _is_sed_text(code: str) -> bool:
    at = 0
    while code[at:].strip(" \t\n;}"):
        found = _SED.match(code, at)
        if found is None or found.end() == at:
            return False
        at = found.end()
    return True
