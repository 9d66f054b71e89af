"""A backend of torch.distributed, "streamed", for race_streams_test.py: as RCCL and HCCL do it, a collective runs on a stream of the
backend's own, after what the caller's stream has been given so far, and wait() makes the stream that is current then go on after it. Its
device is the test backend `toy`, which watches who relies on what (tests/backend/streams.h); the bytes go over Gloo. STREAMED_MISTAKE
plants one: a collective that starts_early or ends_early. At its end each rank writes what was seen to STREAMED_REPORT.RANK."""

import json
import os

import torch
import torch.distributed as dist

from toy_device import NAME, OPS

MISTAKE = os.environ.get("STREAMED_MISTAKE", "")
OPS.watch_streams(True)


class Ended(dist.Work):
    def __init__(self, event):
        super().__init__()
        self.event = event

    def wait(self, timeout=None):
        if MISTAKE != "ends_early":
            torch.accelerator.current_stream().wait_event(self.event)
        return True


class StreamedGroup(dist.ProcessGroup):
    def __init__(self, inner, rank, size):
        super().__init__(rank, size)
        self.inner, self.stream = inner, torch.Stream(device=NAME)
        self.callers = []

    def getBackendName(self):
        return "streamed"

    def run(self, name, result, given, collective):
        caller = torch.accelerator.current_stream()
        self.callers.append(caller.stream_id)
        if MISTAKE != "starts_early":
            self.stream.wait_event(caller.record_event())
        with self.stream:
            OPS.use(given, False, name)
            OPS.use(result, True, name)
            collective(OPS.host_view(result), OPS.host_view(given)).wait()
            return Ended(self.stream.record_event())

    def _allgather_base(self, result, given, options):
        return self.run("all_gather", result, given, lambda to, of: self.inner._allgather_base(to, of, options))

    def _reduce_scatter_base(self, result, given, options):
        return self.run("reduce_scatter", result, given, lambda to, of: self.inner._reduce_scatter_base(to, of, options))

    def allreduce(self, tensors, options):
        return self.run("all_reduce", tensors[0], tensors[0], lambda to, of: self.inner.allreduce([to], options))

    def alltoall_base(self, result, given, to, of, options):
        return self.run("all_to_all", result, given, lambda there, here: self.inner.alltoall_base(there, here, to, of, options))

    def shutdown(self):
        with open(f"{os.environ['STREAMED_REPORT']}.{self.rank()}", "w", encoding="utf-8") as file:
            json.dump({"races": OPS.races(), "collectives": len(self.callers), "callers": sorted(set(self.callers)), "own": self.stream.stream_id}, file)
        self.inner.shutdown()


def make(store, rank, size, timeout):
    return StreamedGroup(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


dist.Backend.register_backend("streamed", make, devices=[NAME])
