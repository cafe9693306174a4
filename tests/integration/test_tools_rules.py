"""Rules about commands against real shells: what is let through never runs what is forbidden.

The scripts are drawn from pieces of shell language by a fixed seed. They run in a folder of their own, where `rm` and
`git` are scripts that only write down that they were called; no other program can be found, and no piece names a path
outside.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from laneway.dialogue import ToolSpec
from laneway.kernel.permissions import Verdict, decide
from laneway.options import PermissionPolicy

BASH = ToolSpec(name="bash")
POLICY = PermissionPolicy(deny=("bash(rm *)", "bash(git push*)"), default_decision="allow")
LANGUAGE = r"""
git rm echo status push x 1 f z a= a=1 a=( a[1<<2]=1 = - -- -p -c * ? [ ] [[ ]] { } ( ) (( )) ; ;; & | && || |& ! # '
" \ $ ` < > << <<< <<EOF <<'EOF' <<-A <<A 2> &> {fd}> $( ${ $(( $' $" $i "$1" ${a:-rm} {push,x} if then else elif fi
do done for select while until case in esac function f() time coproc eval exec command builtin trap EXIT set break
declare export read let printf alias z=rm : , .. + ^ @( !( #' '#'
"""
PIECES = LANGUAGE.split()
LINES = ["\n", "\nEOF\n", "\nA\n", "\\\n", "\t", " ", " "]
ENDS = ["", ";rm x", " rm x", "\nrm x", "\nrm x\nA\n", "\nrm x\nEOF\n", ";git push", "\ngit push"]


def script(dice: random.Random) -> str:
    pieces = (dice.choice(PIECES if dice.random() < 0.8 else LINES) for _ in range(dice.randint(1, 11)))
    text = "".join(piece + (" " if dice.random() < 0.5 else "") for piece in pieces)
    return text + dice.choice(ENDS)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_no_script_that_is_let_through_runs_what_is_forbidden(shell: str, tmp_path: Path) -> None:
    path = shutil.which(shell)
    programs, work, log = tmp_path / "programs", tmp_path / "work", tmp_path / "log"
    programs.mkdir()
    work.mkdir()
    for name in ("rm", "git"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> "{log}"\n')
        (programs / name).chmod(0o755)
    dice = random.Random(shell)
    ran = 0
    while path is not None and ran < 150:
        command = script(dice)
        if decide(POLICY, BASH, {"command": command}).verdict is not Verdict.ALLOW:
            continue
        ran += 1
        log.unlink(missing_ok=True)
        subprocess.run(
            [path, "-c", f"ulimit -t 2\n{command}"],
            env={"PATH": str(programs), "HOME": str(work)},
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        called = log.read_text().splitlines() if log.exists() else []
        assert not [line for line in called if line.startswith(("rm", "git push"))], command
    assert ran == 150 or path is None
