#!/bin/sh
# One hour on a machine with an NVIDIA GPU: are the kernels right, and how fast is everything?
#
#   sh benchmarks/gpu_hour.sh [REPORT]
#
# Wants a checkout, a CUDA build of torch in the present environment, and nvcc for the CUDA kernels.
# Every step goes on where another failed. All that was said goes to the file REPORT
# (gpu-report.txt), which is to be sent back.
cd "$(dirname "$0")/.." || exit 1
report=${1:-gpu-report.txt}
python=${PYTHON:-python}

step() { # SECONDS TITLE COMMAND...: a command, its last lines and its code, in the report
  limit=$1 title=$2
  shift 2
  printf '\n== %s\n   %s\n' "$title" "$*" | tee -a "$report"
  timeout "$limit" "$@" >step.log 2>&1
  code=$?
  tail -n 200 step.log >>"$report"
  printf '== ended with %s\n' "$code" | tee -a "$report"
}

: >"$report"
step 60 "machine" nvidia-smi
step 1500 "build" env LAPKERNELS_CUDA=1 LAPKERNELS_REQUIRE_EXTENSION=1 \
  "$python" setup.py --quiet build_ext --inplace
step 120 "backends" "$python" -m lapkernels info
step 900 "tests on the GPU" "$python" -m pytest -m gpu -q --maxfail=50
step 600 "kernels under compute-sanitizer" compute-sanitizer --tool memcheck --error-exitcode 1 \
  "$python" -m pytest -m gpu -q tests/cuda/test_agreement.py -k "exact_on_integers"
step 600 "races in shared memory" compute-sanitizer --tool racecheck --error-exitcode 1 \
  "$python" -m pytest -m gpu -q tests/cuda/test_agreement.py -k "nan_stays"
step 900 "ops and networks, against torch and other packages" \
  "$python" -m pytest benchmarks -q --benchmark-only --device cuda \
  --benchmark-json=gpu-benchmarks.json
step 300 "their report" "$python" -m benchmarks.report gpu-benchmarks.json
step 300 "a batch, launch by launch" "$python" -c '
import torch
from torch.profiler import ProfilerActivity, profile
import lapkernels as lk
from benchmarks.architectures import resnet
net, x = resnet((64, 128, 256), 3, 10).eval().cuda(), torch.randn(128, 3, 32, 32).cuda()
for name, run in {
    "mc": lambda: lk.diag(net, x, "categorical", method="mc"),
    "approx": lambda: lk.diag(net, x, "categorical", method="approx"),
    "kron": lambda: lk.kron(net, x, "categorical", method="mc"),
}.items():
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    print(name, found.key_averages().table(sort_by="cuda_time_total", row_limit=25))
'
rm -f step.log
echo "send back $report and gpu-benchmarks.json"
