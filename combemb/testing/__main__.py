"""Check one method from the command line: `python -m combemb.testing package.module:Class`, or its name."""

import argparse
import time

from combemb import methods
from combemb.testing import BrokenPromise, Trial, promises


def main() -> int:
    """Print one line per promise; return 0 if all are kept."""
    parser = argparse.ArgumentParser(prog="python -m combemb.testing", description="Check the contract of a method.")
    parser.add_argument("method", help=f"package.module:Class, or one of {', '.join(methods.names())}")
    try:
        cls = methods.get(parser.parse_args().method)
    except ValueError as error:
        parser.error(str(error))
    began, broken = time.perf_counter(), 0
    with Trial(cls) as trial:
        for promise in promises(cls):
            start = time.perf_counter()
            try:
                promise.verify(trial)
                print(f"{time.perf_counter() - start:5.1f} s  {promise.name}: {promise.text}", flush=True)
            except BrokenPromise as error:
                print(error, flush=True)
                broken += 1
    n, seconds = len(promises(cls)), time.perf_counter() - began
    print(f"{cls.__name__} keeps {f'{n - broken} of' if broken else 'all'} {n} promises ({seconds:.1f} s)")
    return min(broken, 1)


if __name__ == "__main__":
    raise SystemExit(main())
