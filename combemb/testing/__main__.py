"""Check one method from the command line: `python -m combemb.testing package.module:Class`, or its name."""

import argparse
import time

from combemb import methods
from combemb.testing import BrokenPromise, Trial, promises


def main() -> int:
    """Print one line per promise; return 0 if all are kept."""
    parser = argparse.ArgumentParser(prog="python -m combemb.testing", description="Check the contract of a method.")
    parser.add_argument("method", help=f"package.module:Class, or one of {', '.join(methods.names())}")
    parser.add_argument("only", nargs="*", help="names of promises; all unless given")
    given = parser.parse_args()
    try:
        cls = methods.get(given.method)
    except ValueError as error:
        parser.error(str(error))
    chosen = [promise for promise in promises(cls) if not given.only or promise.name in given.only]
    unknown = set(given.only) - {promise.name for promise in chosen}
    if unknown:
        parser.error(f"{cls.__name__} makes no promise {', '.join(sorted(unknown))}")
    began = time.perf_counter()
    with Trial(cls) as trial:
        for promise in chosen:
            start = time.perf_counter()
            try:
                promise.verify(trial)
            except BrokenPromise as error:
                print(error)
                return 1
            print(f"{time.perf_counter() - start:5.1f} s  {promise.name}: {promise.text}", flush=True)
    print(f"{cls.__name__} keeps all {len(chosen)} promises ({time.perf_counter() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
