"""Several machines on one: network namespaces with an interface each, joined by a bridge, and stand-ins for ssh, srun and
mpirun that start commands in them. What crosses between two "hosts" is real TCP. Needs root and iproute2."""

import contextlib
import os
import pathlib
import shutil
import stat
import subprocess
import uuid


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def unavailable():
    """Why hosts cannot be made here, or ""."""
    if shutil.which("ip") is None:
        return "no ip (iproute2)"
    name = f"fl-try-{uuid.uuid4().hex[:6]}"
    made = ip("netns", "add", name, check=False)
    if made.returncode != 0:
        return "no network namespaces: " + made.stderr.strip()
    ip("netns", "del", name, check=False)
    return ""


class Hosts:
    """n1, n2, … and the machine itself as `launcher`, at 10.77.X.Y. Every host sees the same files."""

    def __init__(self, count, folder):
        self.tag = uuid.uuid4().hex[:6]
        self.folder = pathlib.Path(folder)
        self.names = [f"n{i + 1}" for i in range(count)]
        self.subnet = f"10.77.{int(self.tag[:2], 16)}"
        self.address = f"{self.subnet}.254"

    def namespace(self, name):
        return f"fl-{self.tag}-{name}"

    def address_of(self, name):
        return f"{self.subnet}.{self.names.index(name) + 1}"

    def __enter__(self):
        self.hub = self.namespace("hub")
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        ip("-n", self.hub, "link", "set", "lo", "up")
        ip("-n", self.hub, "addr", "add", f"{self.address}/24", "dev", "bridge")
        for name in self.names:
            space, wire = self.namespace(name), f"to-{name}"
            ip("netns", "add", space)
            ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", wire, "netns", self.hub)
            ip("-n", self.hub, "link", "set", wire, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{self.address_of(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        self.write_stand_ins()
        return self

    def __exit__(self, *_):
        for name in [*self.names, "hub"]:
            for process in ip("netns", "pids", self.namespace(name), check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            ip("netns", "del", self.namespace(name), check=False)

    def processes(self, name, *, of="race"):
        """Of this program on a host."""
        found = []
        for process in ip("netns", "pids", self.namespace(name)).stdout.split():
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                if words and words[0].endswith(b"faultline") and of.encode() in words:
                    found.append(int(process))
        return found

    def program(self, name, text):
        path = self.folder / name
        path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def write_stand_ins(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        # A host's name is its own, as on real machines; a shell there reads what ssh was given.
        enter = f"exec ip netns exec fl-{self.tag}-$host unshare --uts bash -c 'hostname '$host'; exec \"$@\"' enter"
        self.program("ssh", f'shift 2; host=$1; shift\n{enter} bash -c "exec $*"\n')
        start = f"""
per=$((ranks / ${{#hosts[@]}})); rank=0; pids=()
for host in "${{hosts[@]}}"; do
  for ((local = 0; local < per; ++local)); do
    ( {enter} env "$@" ) & pids+=($!); rank=$((rank + 1))
  done
done
"""
        slurm = start.replace('env "$@"', 'env SLURM_PROCID=$rank SLURM_NTASKS=$ranks SLURM_LOCALID=$local SLURM_NTASKS_PER_NODE=$per "$@"')
        self.program("srun", 'for word in "$@"; do case $word in --ntasks=*) ranks=${word#*=};; --nodelist=*) IFS=, read -ra hosts <<<"${word#*=}";; --*) ;; *) break;; esac; shift; done'
                     + slurm + 'code=0; for pid in "${pids[@]}"; do wait $pid || code=$?; done; exit $code\n')
        mpi = start.replace('env "$@"', 'env OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$ranks OMPI_COMM_WORLD_LOCAL_RANK=$local OMPI_COMM_WORLD_LOCAL_SIZE=$per "$@"')
        # Like the real one, it ends all ranks when one was killed.
        self.program("mpirun", 'ranks=$2; IFS=, read -ra hosts <<<"${4//:[0-9]/}"; shift 4' + mpi
                     + 'code=0; for _ in "${pids[@]}"; do wait -n || { code=$?; [ $code -gt 128 ] && kill -TERM "${pids[@]}" 2>/dev/null; }; done; exit $code\n')

    def environment(self):
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def command(self, *words):
        """A command of the launcher's machine."""
        return ["ip", "netns", "exec", self.hub, *map(str, words)]
