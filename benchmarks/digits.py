"""Digits: novel- and seen-class mAP of CombEmb, ITQ and plain pixels, one line per run, then mean and deviation.

python benchmarks/digits.py                                           # what the README reports: split 0, 24 bits
python benchmarks/digits.py --split tune-0 tune-1 tune-2              # where settings are chosen
python benchmarks/digits.py --split tune-0 --set ramp_share=0         # CombEmb with another setting
"""

import argparse
import statistics
from typing import Any

import torch

from combemb.cli import parse_settings
from combemb.data import open_set_split, sources
from combemb.demo import search_quality
from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ


def compare(split_name: str, seed: int, bits: int, fields: dict[str, Any], one_view: bool) -> dict[str, float]:
    """Novel-class mAP of each method on one split and seed."""
    digits = sources.load("digits")
    split = open_set_split(digits.train_targets, split_name, seed=seed)
    is_novel = split.is_novel(digits.test_targets)
    train_x = digits.train_x[:, :1] if one_view else digits.train_x
    found = {}
    methods = {"CombEmb": CombEmb(bits=bits, seed=seed, **fields), "ITQ": ITQ(bits=bits, seed=seed), "pixels": None}
    for name, method in methods.items():
        if method is not None:
            method.fit(train_x, split.labels)
        novel, seen = (search_quality(method, digits, queries).map for queries in (is_novel, ~is_novel))
        print(f"split {split_name}  {bits} bits  seed {seed}  {name:8} novel {novel:.3f}  seen {seen:.3f}", flush=True)
        found[name] = novel
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=24)
    parser.add_argument("--split", nargs="+", default=["0"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of CombEmb")
    parser.add_argument("--one-view", action="store_true", help="train on the clean images alone")
    given = parser.parse_args()
    fields = parse_settings(CombEmb, given.set)
    runs = [compare(name, seed, given.bits, fields, given.one_view) for name in given.split for seed in given.seed]
    combemb = statistics.mean(run["CombEmb"] for run in runs)
    for method in runs[0]:
        values = [run[method] for run in runs]
        mean, spread = statistics.mean(values), statistics.pstdev(values)
        print(f"{method:8} novel {mean:.3f} ± {spread:.3f} over {len(runs)} runs; CombEmb is {combemb / mean - 1:+.0%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
