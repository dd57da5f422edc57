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
    began = time.perf_counter()
    with Trial(cls) as trial:
        for promise in promises(cls):
            start = time.perf_counter()
            try:
                promise.verify(trial)
            except BrokenPromise as error:
                print(error)
                return 1
            print(f"{time.perf_counter() - start:5.1f} s  {promise.name}: {promise.text}", flush=True)
    print(f"{cls.__name__} keeps all {len(promises(cls))} promises ({time.perf_counter() - began:.1f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
