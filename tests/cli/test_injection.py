"""The injected hook: when it acts, in which process, and what it leaves alone."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import pytest

from .sandbox import INJECT, Sandbox

NEXT_OF_ITS_OWN = """
import importlib, os, sys
print("theirs", flush=True)
here = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p) != here]
mine = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = mine
"""


def test_torch_is_announced_once_it_has_loaded(sandbox: Sandbox) -> None:
    done = sandbox.python(
        "-c", "import torch, torch; assert torch.loaded; import os; print(os.getpid())"
    )
    assert done.stderr == ""
    assert sandbox.attached() == [int(done.stdout)]


def test_nothing_happens_without_torch(sandbox: Sandbox) -> None:
    done = sandbox.python("-c", "import sys, json; print('sgplan' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert sandbox.attached() == []


def test_nothing_happens_outside_a_run(sandbox: Sandbox) -> None:
    done = sandbox.python("-c", "import torch", SGPLAN_RUN="")
    assert (done.returncode, done.stderr) == (0, "")
    assert sandbox.attached() == []


def test_the_loader_of_torch_is_left_as_it_was(sandbox: Sandbox) -> None:
    code = "import torch; print('exec_module' in vars(torch.__spec__.loader))"
    assert sandbox.python("-c", code).stdout == "False\n"


def test_torch_that_fails_once_is_announced_when_it_loads(sandbox: Sandbox) -> None:
    sandbox.write(
        "torch/__init__.py", "import os\nif 'BROKEN' in os.environ: raise ImportError('x')\n"
    )
    code = """
import os
os.environ["BROKEN"] = "1"
try:
    import torch
except ImportError:
    del os.environ["BROKEN"]
import torch
"""
    assert sandbox.python("-c", code).returncode == 0
    assert len(sandbox.attached()) == 1


@pytest.mark.parametrize("name", ["theirs/sitecustomize.py", "theirs/sitecustomize/__init__.py"])
def test_the_users_sitecustomize_runs_and_keeps_its_name(sandbox: Sandbox, name: str) -> None:
    folder = sandbox.write(name, "import builtins\nbuiltins.flag = __name__\nmine = True\n")
    root = folder.parent if folder.name == "sitecustomize.py" else folder.parent.parent
    code = "import sys, torch; print(flag, sys.modules['sitecustomize'].mine)"
    path = os.pathsep.join([sandbox.environ()["PYTHONPATH"], str(root)])
    done = sandbox.python("-c", code, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("sitecustomize True\n", "")
    assert len(sandbox.attached()) == 1


def test_a_package_keeps_its_submodules(sandbox: Sandbox) -> None:
    sandbox.write("sitecustomize/__init__.py", "from . import part\n")
    sandbox.write("sitecustomize/part.py", "value = 3\n")
    done = sandbox.python("-c", "import sitecustomize.part; print(sitecustomize.part.value)")
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_users_sitecustomize_runs_after_our_finder_stands(sandbox: Sandbox) -> None:
    sandbox.write("sitecustomize.py", "import torch\n")
    assert sandbox.python("-c", "pass").returncode == 0
    assert len(sandbox.attached()) == 1


def test_a_failing_sitecustomize_says_the_same_as_without_us(sandbox: Sandbox) -> None:
    sandbox.write("sitecustomize.py", "raise RuntimeError('theirs')\n")
    plain = sandbox.python("-c", "import torch", PYTHONPATH=str(sandbox.path), SGPLAN_RUN="")
    ours = sandbox.python("-c", "import torch")
    assert "RuntimeError: theirs" in ours.stderr
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)
    assert len(sandbox.attached()) == 1


def test_a_sitecustomize_that_chains_itself_does_not_go_in_circles(sandbox: Sandbox) -> None:
    sandbox.write("sitecustomize.py", NEXT_OF_ITS_OWN)
    last = sandbox.write("last/sitecustomize.py", "print('last', flush=True)\n").parent
    path = os.pathsep.join([sandbox.environ()["PYTHONPATH"], str(last)])
    done = sandbox.python("-c", "import torch", PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("theirs\nlast\n", "")
    assert len(sandbox.attached()) == 1


def test_a_child_started_while_attaching_is_left_alone(sandbox: Sandbox) -> None:
    sandbox.write(
        "sgplan/attach.py",
        "import subprocess, sys\n"
        "def torch_loaded(torch):\n"
        "    print('attached', flush=True)\n"
        "    subprocess.run([sys.executable, '-c', 'import torch'], check=True)\n",
    )
    assert sandbox.python("-c", "import torch").stdout == "attached\n"


def test_a_compiler_wrapper_in_python_is_left_alone(sandbox: Sandbox) -> None:
    wrapper = sandbox.write("bin/g++", f"#!{sys.executable}\nimport torch\nprint('compiled')\n")
    wrapper.chmod(0o755)
    code = f"import torch, subprocess, os; print(os.getpid()); subprocess.run(['{wrapper}'])"
    pid, said = sandbox.python("-u", "-c", code, RANK="0").stdout.split()
    assert said == "compiled"
    assert sandbox.attached() == [int(pid)]


def test_a_script_that_removes_pythonpath_goes_on(sandbox: Sandbox) -> None:
    code = (
        "import os, subprocess, sys; del os.environ['PYTHONPATH'];"
        "sys.exit(subprocess.run([sys.executable, '-c', 'pass']).returncode)"
    )
    done = sandbox.python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_hook_by_hand_does_nothing(sandbox: Sandbox) -> None:
    sandbox.write("sgplan/inject/sitecustomize.py", (INJECT / "sitecustomize.py").read_text())
    code = (
        "import sys; before = list(sys.meta_path);"
        "import sgplan.inject.sitecustomize, sitecustomize; print(before == sys.meta_path)"
    )
    done = sandbox.python("-c", code)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_runs_as_if_we_were_not_there(sandbox: Sandbox, option: str) -> None:
    done = sandbox.python(option, "-c", "print('ran')")
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_an_attach_that_fails_costs_one_line(sandbox: Sandbox) -> None:
    sandbox.write("sgplan/attach.py", "def torch_loaded(torch): raise ValueError('ours')\n")
    done = sandbox.python("-c", "import torch; print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == (
        f"sgplan: {sys.executable} failed to attach, "
        "the script runs as if there were no plan: ValueError('ours')\n"
    )
    assert len(list(sandbox.run.glob("attach-failed-*.txt"))) == 1


def test_a_python_without_sgplan_is_named_by_its_path(sandbox: Sandbox) -> None:
    sandbox.write("sgplan/attach.py", "raise ModuleNotFoundError(\"No module named 'msgpack'\")\n")
    done = sandbox.python("-c", "import torch; print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert sys.executable in done.stderr
    (note,) = sandbox.run.glob("attach-failed-*.txt")
    assert (
        note.read_text() == f"{sys.executable}\ncannot import sgplan\nNo module named 'msgpack'\n"
    )


def test_spawned_workers_load_nothing_of_ours(sandbox: Sandbox) -> None:
    script = sandbox.write(
        "train.py",
        "import multiprocessing, sys\n"
        "def look(_): return [m for m in sys.modules if m.split('.')[0] in ('torch', 'sgplan')]\n"
        "if __name__ == '__main__':\n"
        "    import torch\n"
        "    with multiprocessing.get_context('spawn').Pool(4) as pool:\n"
        "        print(pool.map(look, range(8), chunksize=1) == [[]] * 8)\n",
    )
    done = sandbox.python(str(script), RANK="0")
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert len(sandbox.attached()) == 1


def test_compile_workers_are_left_alone(sandbox: Sandbox) -> None:
    worker = sandbox.write(
        "torch/_inductor/compile_worker/__main__.py",
        "import os, sys, torch\nprint('SGPLAN_RUN' in os.environ, 'sgplan' in sys.modules)\n",
    )
    # Without RANK and without a rank above it: only its command says what it is.
    by_path = sandbox.python(str(worker), "--workers=2")
    by_name = sandbox.python("-m", "torch._inductor.compile_worker", "--workers=2")
    assert (by_path.stdout, by_path.stderr) == ("True False\n", "")
    assert (by_name.stdout, by_name.stderr) == ("True False\n", "")
    assert sandbox.attached() == []


def test_coverage_and_the_hook_are_both_active(sandbox: Sandbox) -> None:
    site = sandbox.path / "pth"
    site.mkdir()
    (site / "cov.pth").write_text("import coverage; coverage.process_startup()\n")
    sandbox.write("sitecustomize.py", f"import site\nsite.addsitedir({str(site)!r})\n")
    sandbox.write("cov.ini", f"[run]\ndata_file = {sandbox.run}/data\nparallel = true\n")
    done = sandbox.python(
        "-c", "import torch", COVERAGE_PROCESS_START=str(sandbox.path / "cov.ini")
    )
    assert done.returncode == 0, done.stderr
    assert len(sandbox.attached()) == 1
    assert list(sandbox.run.glob("data.*"))


def test_a_child_without_torch_pays_little(sandbox: Sandbox) -> None:
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    environs = {"plain": sandbox.environ(PYTHONPATH=str(sandbox.path)), "ours": sandbox.environ()}
    for _ in range(15):
        for name, environ in environs.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=environ, check=True)
            times[name].append(time.perf_counter() - start)
    # 3 ms on a quiet machine (`bench/`); a busy one only shows that nothing heavy is loaded.
    assert statistics.median(times["ours"]) - statistics.median(times["plain"]) < 0.05
