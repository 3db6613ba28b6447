"""Runs first in every Python that `sgplan apply` or `plan` starts; waits there for `torch`.

Order: our finder is put on `sys.meta_path`, then the `sitecustomize` this one shadows runs as if we
were not here and stands in `sys.modules`. It knows how to wait and how to say that sgplan cannot be
imported; everything else is `sgplan.rank` and `sgplan.attach`, loaded only when torch was.
It must run on any Python from 3.7, import nothing heavy, and never break the process it is in.
"""

import _imp
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_SUFFIXES = ["", ".py", ".pyc", *_imp.extension_suffixes()]


def _say(text):
    try:
        sys.stderr.write(f"sgplan: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # a closed or missing stderr is no reason to fail


def _role():
    """What this process is, by `rank.py` beside our folder: it works without sgplan installed."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_sgplan_rank", os.path.join(os.path.dirname(_HERE), "rank.py"))
    assert spec is not None
    assert spec.loader is not None
    rank = module_from_spec(spec)
    spec.loader.exec_module(rank)
    argv = getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv]
    return rank.decide(os.environ, argv, os.getpid())


def _report_failure(what, error):
    """One line for the person who looks, and the same in the run folder for `apply` to tell."""
    _say(f"{sys.executable} {what}, the script runs as if there were no plan: {error}")
    _leave("attach-failed", f"{sys.executable}\n{what}\n{error}\n")


def _leave(kind, text):
    """A file in the run folder: a process that trains nothing leaves no other trace."""
    name = os.path.join(os.environ.get("SGPLAN_RUN", ""), f"{kind}-{os.getpid()}.txt")
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as fault:
        _say(f"{name} cannot be written: {fault}")


def _torch_loaded(torch):
    """Hand over to `sgplan.attach` in a process that may train; children started then stay out."""
    role = _role() if os.environ.get("SGPLAN_RUN") else "helper"
    if role in ("helper", "launcher"):
        return
    os.environ["SGPLAN_ATTACHING"] = str(os.getpid())
    try:
        from sgplan import attach

        attach.torch_loaded(torch)
        _leave("attached", f"{sys.executable}\n{role}\n")
    except ImportError as error:
        _report_failure("cannot import sgplan", error)
    except Exception as error:
        _report_failure("failed to attach", repr(error))
    finally:
        os.environ.pop("SGPLAN_ATTACHING", None)


class _TorchFinder:
    """Answers for `torch` once, with the spec the other finders give, and watches its loading."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = _spec_from_the_others(name, path, target)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            sys.meta_path.insert(0, self)
        else:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader):
        load = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            try:
                load(module)
            except BaseException:
                # A failed import may be tried again (after installing a library, say).
                sys.meta_path.insert(0, self)
                raise
            _torch_loaded(module)

        loader.exec_module = exec_module


def _spec_from_the_others(name, path, target):
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


def _shadowed(already):
    """The spec of the next `sitecustomize` on the path, ours and those that ran left out."""
    finder = next((f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder"), None)
    if finder is None:
        return None
    for entry in sys.path:
        folder = os.path.abspath(entry or os.getcwd())
        if not _may_hold_one(folder) or os.path.realpath(folder) == os.path.realpath(_HERE):
            continue
        spec = finder.find_spec("sitecustomize", [folder])
        if spec is not None and spec.loader is not None and spec.origin not in already:
            return spec
    return None


def _may_hold_one(folder):
    """A few file checks: asking the import system would list every folder of the path."""
    if not os.path.isdir(folder):
        return os.path.isfile(folder)  # an archive
    stem = os.path.join(folder, "sitecustomize")
    return any(os.path.exists(stem + suffix) for suffix in _SUFFIXES)


def _run_shadowed(already):
    from _frozen_importlib import module_from_spec

    spec = _shadowed(already)
    if spec is None:
        return
    already.add(spec.origin)
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    # Its own failure is reported by `site`, exactly as without us.
    assert spec.loader is not None
    spec.loader.exec_module(module)


def _main():
    # A chained sitecustomize may look for "the next one" itself and find us again: the marker keeps
    # us from hooking twice, and the set of those that ran from going in circles.
    already = getattr(sys, "_sgplan_chained", None)
    if already is None:
        already = sys._sgplan_chained = set()  # pyright: ignore[reportAttributeAccessIssue]
        if "torch" not in sys.modules:
            sys.meta_path.insert(0, _TorchFinder())
        else:
            _torch_loaded(sys.modules["torch"])
    _run_shadowed(already)


if __name__ == "sitecustomize":
    _main()
