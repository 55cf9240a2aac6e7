"""A Ray cluster of nodes on this machine, each with a CPU and a GPU that are only counted.

Prints its address, then obeys: "add" starts a node, "kill" ends the newest one and all its processes by SIGKILL, and
"kill actor" ends one process of a sweep alone.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "num_gpus": 1}
SETTINGS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 10,
    "worker_niceness": 0,  # of Ray's workers it is 15: beside other tests they would hardly get a core
}
HEAD = {**NODE, "include_dashboard": False, "_system_config": SETTINGS}


def children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return [*found, *(below for each in found for below in children(each))]


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def tell(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    nodes = [cluster.add_node(**NODE) for _ in range(int(sys.argv[1]) - 1)]
    tell(cluster.address)
    for line in sys.stdin:
        if line.strip() == "add":
            nodes.append(cluster.add_node(**NODE))
        elif line.strip() == "kill actor":
            actors = [pid for pid in children(os.getpid()) if title(pid).startswith("ray::Node")]
            os.kill(actors[0], signal.SIGKILL)
        else:
            node = nodes.pop()
            raylets = [process.process.pid for process in node.all_processes["raylet"]]
            for pid in [each for raylet in raylets for each in (raylet, *children(raylet))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        tell("done")
    cluster.shutdown()


if __name__ == "__main__":
    main()
