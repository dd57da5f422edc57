"""Time of a fit, with and without its check on hidden classes, against that of another checkout.

    git worktree add ../before fc9289a
    python benchmarks/fit_time.py ../before

Each fit runs in a process of its own, one thread, default settings, 48 bits; the checkouts take turns, so that a busy
machine slows all. Seconds are those of the processor during `fit`, imports left out. The data are the digits of
scikit-learn, 7 of 10 classes seen and half of those labelled, and as many synthetic features as 600 images of each of
10 classes give (6,000 x 3 views x 256).
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent.parent
ROUNDS = 3
CHILD = """
import sys, time, warnings
import numpy as np, torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from combemb import CombEmb
name, fields = sys.argv[1], dict(check=False) if sys.argv[2] == "no" else {}
rng = np.random.default_rng(0)
if name == "digits":
    from sklearn.datasets import load_digits
    x, targets = load_digits(return_X_y=True)
else:
    targets = rng.integers(10, size=6_000)
    x = rng.normal(size=(10, 256))[targets] + 1.5 * rng.normal(size=(6_000, 256))
    x = x[:, None] + 0.5 * rng.normal(size=(6_000, 3, 256))
labels = np.where((targets < 7) & (rng.random(len(x)) < 0.5), targets, -1)
model = CombEmb(bits=48, **fields)
began = time.process_time()
model.fit(x.astype(np.float32), labels)
print(time.process_time() - began)
"""


def fit_seconds(checkout: Path, name: str, checked: str) -> float:
    command = [sys.executable, "-c", CHILD, name, checked]
    settings = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the fit of {checkout} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout of the code to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    for name in ("digits", "features"):
        ratios = []
        for _ in range(arguments.rounds):
            before, without, checked = (
                fit_seconds(checkout, name, check)
                for checkout, check in ((arguments.before, "default"), (HERE, "no"), (HERE, "default"))
            )
            ratios.append((without / before, checked / before))
            print(
                f"  {name}: before {before:.1f} s, without check {without:.1f} s, with check {checked:.1f} s",
                flush=True,
            )
        without, checked = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"{name}: {without:.2f} x without the check (at most 1.2 wanted), {checked:.2f} x with it (2.0)")


if __name__ == "__main__":
    main()
