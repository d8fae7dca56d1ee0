"""Check a TPU worker's environment for consistency with its list of hosts."""

from __future__ import annotations

from podrun.runtime.contract import UserError

from ..yamlfile.short import short


def check_worker(typed: str, name: str, number: str | None, hosts: int) -> None:
    """Raise UserError unless `number`, the worker number from `name`, is the index of one of the hosts."""
    if number is None:
        return
    if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < hosts):
        raise UserError(
            f"{typed}: {name} is {short(number)}, but {hosts} {'host is' if hosts == 1 else 'hosts are'} listed, which "
            "count from 0: the two do not match; name the hosts with --hosts"
        )


def check_slices(typed: str, number: str | None) -> None:
    """Raise UserError if this worker belongs to one of several slices, because a slice lists only its own hosts."""
    if number not in (None, "", "1"):
        raise UserError(
            f"{typed}: this is one of several slices (MEGASCALE_NUM_SLICES is {short(str(number))}), and each knows its own "
            "hosts only; name the hosts of all slices in a pod file, one slice after the other, and give --num-slices"
        )
