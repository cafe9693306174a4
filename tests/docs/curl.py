"""What the pages need of `curl`, for machines that have none: `python curl.py [-siN] [-X M] [-H H] [-d D] URL`."""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request


def main() -> None:
    """Make one request and print its answer."""
    parser = argparse.ArgumentParser()
    for flag in "siN":
        parser.add_argument(f"-{flag}", action="store_true")
    parser.add_argument("-X")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("url")
    given = parser.parse_args()
    headers = dict(line.split(": ", 1) for line in given.H)
    body = None if given.d is None else given.d.encode()
    request = urllib.request.Request(given.url, body, headers, method=given.X)  # noqa: S310 - a server of the test
    try:
        answer = urllib.request.urlopen(request, timeout=30)  # noqa: S310 - the same
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        if given.i:
            sys.stdout.write(f"HTTP/1.1 {answer.status} {answer.reason}\n")
            sys.stdout.write("".join(f"{name.lower()}: {value}\n" for name, value in answer.headers.items()) + "\n")
        sys.stdout.write(answer.read().decode())


if __name__ == "__main__":
    main()
