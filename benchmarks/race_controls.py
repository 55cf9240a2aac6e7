"""What racecheck makes of barriers and of parts that blocks send each other: small kernels known to be right or wrong.

    python benchmarks/race_controls.py --out RESULT.json
    python benchmarks/race_controls.py --only assemble        # no GPU: whether the assembler takes each of them

In PTX, launched through the driver alone, each under racecheck in a process of its own. The first ones make a barrier
in shared memory, then say what it expects, as Triton does for TMA; in the last ones the two blocks of a cluster send
each other 32 parts by st.async and read what came, as `cluster_k` does. `right` is by the PTX ISA: whether the second
access follows the first in one thread's order, or by a barrier between them.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CUDA = "/usr/local/cuda/bin"
LIMIT_S = 30.0
FIRST_THREAD = "setp.eq.u32 {0}, thread, 0;"
ELECTED = "elect.sync _|{0}, 0xffffffff; setp.lt.and.u32 {0}, thread, 32, {0};"
ANOTHER_LANE = "setp.eq.u32 {0}, thread, 1;"
ANOTHER_WARP = "nanosleep.u32 2000; setp.eq.u32 {0}, thread, 32;"
MEETING = "bar.sync 0;"
AWAIT = """
again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 second, [barrier], 0;
    @!second bra again;"""

HEAD = """.version 8.6
.target sm_90a
.address_size 64
.shared .align 8 .b64 barrier;
.shared .align 16 .b8 parts[128];
.visible .entry control(.param .u64 out) .reqntid {threads}, 1, 1 {cluster}
{{
    .reg .pred first, second;
    .reg .u32 thread, lane, rank, peer, here, there, told, value;
    .reg .u64 to;
    mov.u32 thread, %tid.x;
    mov.u32 lane, %laneid;
    ld.param.u64 to, [out];
"""
BARRIER = """    {makes}
    @first mbarrier.init.shared::cta.b64 [barrier], 1;
    fence.proxy.async.shared::cta;
    {between}
    {expects}
    @second mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 0;
    bar.sync 0;
    @first st.global.u32 [to], lane;
    ret;
}}
"""
PARTS = """    mov.u32 rank, %cluster_ctarank;
    xor.b32 peer, rank, 1;
    setp.eq.u32 first, thread, 0;
    @first mbarrier.init.shared::cta.b64 [barrier], 1;
    bar.sync 0;
    @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed;
    barrier.cluster.wait.acquire;
    mov.u32 here, parts;
    mad.lo.u32 here, thread, 4, here;
    mapa.shared::cluster.u32 there, here, peer;
    mapa.shared::cluster.u32 told, barrier, peer;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], thread, [told];
    {wait}
    xor.b32 here, here, 124;
    ld.shared.u32 value, [here];
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @first st.global.u32 [to], value;
    ret;
}}
"""


def barrier(makes, expects, between=""):
    return (HEAD + BARRIER).format(
        threads=64, cluster="", makes=makes.format("first"), expects=expects.format("second"), between=between
    )


def parts(wait):
    """A thread reads what another thread of the other block sent."""
    return (HEAD + PARTS).format(threads=32, cluster=".reqnctapercluster 2, 1, 1 .explicitcluster", wait=wait)


CONTROLS = {
    "made and used by one thread": (True, barrier(FIRST_THREAD, FIRST_THREAD)),
    "made and used by the elected lane": (True, barrier(ELECTED, ELECTED)),
    "made by the elected lane, used by thread 0": (None, barrier(ELECTED, FIRST_THREAD)),
    "made by the elected lane, met, used by thread 0": (True, barrier(ELECTED, FIRST_THREAD, MEETING)),
    "made by lane 0, used by lane 1": (False, barrier(FIRST_THREAD, ANOTHER_LANE)),
    "made by warp 0, used by warp 1": (False, barrier(FIRST_THREAD, ANOTHER_WARP)),
    "made by warp 0, met, used by warp 1": (True, barrier(FIRST_THREAD, ANOTHER_WARP, MEETING)),
    "sent, awaited, read": (True, parts(AWAIT)),
    "sent, read without waiting": (False, parts("")),
}
"""Whether it is right, and its PTX. None: where the elected lane is lane 0, which the ISA leaves open."""


def launch(ptx: str) -> int:
    """Run a control on two blocks; what it wrote."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def ask(name, *arguments):
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name}: error {code}")

    context, module, function, out = (ctypes.c_void_p() for _ in range(4))
    ask("cuInit", 0)
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    ask("cuCtxSetCurrent", context)
    ask("cuModuleLoadData", ctypes.byref(module), ptx.encode())
    ask("cuModuleGetFunction", ctypes.byref(function), module, b"control")
    ask("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4))
    given = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    threads = 64 if ".reqntid 64" in ptx else 32
    ask("cuLaunchKernel", function, 2, 1, 1, threads, 1, 1, 0, None, given, None)
    ask("cuCtxSynchronize")
    value = ctypes.create_string_buffer(4)
    ask("cuMemcpyDtoH_v2", value, out, ctypes.c_size_t(4))
    (wrote,) = struct.unpack("I", value.raw)
    return wrote


def assemble() -> None:
    """Every control by Triton's own assembler."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "control.ptx"
        for name, (_, ptx) in CONTROLS.items():
            source.write_text(ptx)
            command = [knobs.nvidia.ptxas.path, "-arch=sm_90a", str(source), "-o", str(Path(folder) / "control.cubin")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(f"{name}: {'assembled' if done.returncode == 0 else done.stderr}")


def told(name, right, sanitizer):
    """A control under racecheck: its row of the result."""
    from sanitizer import watched

    row, text = watched([sys.executable, __file__, "--only", name], "racecheck", sanitizer, LIMIT_S)
    lines = text.splitlines()
    wrote = [line.removeprefix("wrote ") for line in lines if line.startswith("wrote ")]
    reports = [line.removeprefix("========= ") for line in lines if "access" in line]
    return {"control": name, "right": right, **row, "wrote": wrote[0] if wrote else None, "reports": reports}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument(
        "--only", choices=("assemble", *CONTROLS), metavar="CONTROL", help="launch this one alone; or `assemble`"
    )
    parser.add_argument("--compute-sanitizer", default=shutil.which("compute-sanitizer") or f"{CUDA}/compute-sanitizer")
    args = parser.parse_args()
    if args.only == "assemble":
        assemble()
    elif args.only:
        print("wrote", launch(CONTROLS[args.only][1]))
    elif args.out is None:
        parser.error("give --out RESULT.json")
    elif not Path(args.compute_sanitizer).exists():
        parser.error(f"no {args.compute_sanitizer}: it comes with the CUDA toolkit; give --compute-sanitizer PATH")
    else:
        import record

        with ThreadPoolExecutor(8) as pool:
            given = [(name, right, args.compute_sanitizer) for name, (right, _) in CONTROLS.items()]
            rows = list(pool.map(told, *zip(*given, strict=True)))
        record.write(args.out, {"rows": rows})
        for row in rows:
            print(
                f"{row['control']:52} right {row['right']!s:5} {row['errors']!s:>4} errors {row['warnings']!s:>4} "
                f"warnings, wrote {row['wrote']}, {row['ended']}"
            )


if __name__ == "__main__":
    main()
