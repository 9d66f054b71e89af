"""A backend of torch.distributed, "lying", for race_torch_test.py: a process group in Python over Gloo that corrupts, swaps, drops and
delays results on demand. LYING_BACKEND is a JSON list of lies: rank, operation, call (counted from 0, each operation by itself) and
what is done to that call's result. Nothing here knows anything of the tool under test."""

import json
import os
import time

import torch
import torch.distributed as dist


class Deferred(dist.Work):
    """A collective that is over, for its caller, once `then` has run on its result."""

    def __init__(self, inner, then):
        super().__init__()
        self.inner, self.then = inner, then

    def wait(self, timeout=None):
        self.inner.wait()
        self.then()
        return True


def corrupt(result, lie):
    result.view(torch.int16)[lie["element"]] ^= 1 << lie["bit"]


def swap(result, lie):
    """Two ranks' pieces change places; of what is one piece, two elements that differ."""
    pieces = result.chunk(lie["pieces"])
    if len(pieces) > 1:
        one, other = pieces[lie["rank"]], pieces[lie["rank"] - 1]
    else:
        one = result[lie["element"]]
        other = next(value for value in result if value != one)
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


class LyingGroup(dist.ProcessGroup):
    def __init__(self, inner, rank, size, lies):
        super().__init__(rank, size)
        self.inner, self.calls = inner, {}
        self.lies = {(lie["operation"], lie["call"]): lie for lie in lies if lie["rank"] == rank}

    def getBackendName(self):
        return "lying"

    def collective(self, operation, result, start):
        """start(where): Gloo's collective into `where`."""
        call = self.calls[operation] = self.calls.get(operation, -1) + 1
        lie = self.lies.get((operation, call))
        if lie is None:
            return start(result)
        if lie["lie"] == "delay":
            time.sleep(lie["seconds"])
            return start(result)
        if lie["lie"] == "drop":  # the others get theirs
            return start(result.clone())
        if lie["lie"] == "fail":
            raise RuntimeError("the adapter lost its link")
        return Deferred(start(result), lambda: {"corrupt": corrupt, "swap": swap}[lie["lie"]](result, lie))

    def _allgather_base(self, result, given, options):
        return self.collective("all_gather", result, lambda where: self.inner._allgather_base(where, given, options))

    def _reduce_scatter_base(self, result, given, options):
        return self.collective("reduce_scatter", result, lambda where: self.inner._reduce_scatter_base(where, given, options))

    def allreduce(self, tensors, options):
        return self.collective("all_reduce", tensors[0], lambda where: self.inner.allreduce([where], options))

    def alltoall_base(self, result, given, to, of, options):
        return self.collective("all_to_all", result, lambda where: self.inner.alltoall_base(where, given, to, of, options))

    def shutdown(self):
        self.inner.shutdown()


def make(store, rank, size, timeout):
    return LyingGroup(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size, json.loads(os.environ.get("LYING_BACKEND", "[]")))


dist.Backend.register_backend("lying", make, devices=["cpu"])
