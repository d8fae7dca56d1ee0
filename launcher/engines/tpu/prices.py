"""Read the price of a TPU from Google's price list, a file with the answer of its Cloud Billing Catalog API.

The form: https://cloud.google.com/billing/v1/how-tos/catalog-api (`services/6F81-5844-456A/skus`, which is Compute Engine).
Prices of v5e and later are per chip and hour; older generations have other units, so podrun names no price for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from podrun.runtime.contract import UserError

from ...yamlfile.short import short
from .gcloud_answer import Answer
from .order import Cost, Order

_LIMIT = 256 << 20  # bytes: the whole list has about 50 MB
_NAMES = {"v5litepod": "v5e", "v5p": "v5p", "v6e": "v6e", "tpu7x": "v?7x"}
_SPOT = re.compile(r"Preemptible|Spot")
_FLEX = re.compile(r"DWS Defined Duration|Flex.?Start", re.IGNORECASE)
_OTHER = re.compile(r"Commit|Reserv|Calendar|DWS|Flex", re.IGNORECASE)  # for other classes of cost


class _Category(Answer):
    usage_type: str = ""


class _Money(Answer):
    currency_code: Annotated[str, Field(max_length=3)] = "USD"
    units: Annotated[int, Field(ge=0)] = 0
    nanos: Annotated[int, Field(ge=0, lt=10**9)] = 0


class _Rate(Answer):
    unit_price: _Money = _Money()


class _Expression(Answer):
    usage_unit: str = ""
    tiered_rates: tuple[_Rate, ...] = ()


class _Pricing(Answer):
    pricing_expression: _Expression = _Expression()


class _Sku(Answer):
    description: str = ""
    category: _Category = _Category()
    service_regions: tuple[str, ...] = ()
    pricing_info: tuple[_Pricing, ...] = ()


class _List(Answer):
    skus: tuple[_Sku, ...]


@dataclass(frozen=True)
class Price:
    """The list price of one TPU."""

    per_hour: float
    """Of all of its chips together."""
    currency: str
    """Such as `USD`."""
    chips: int

    def __str__(self) -> str:
        return f"{self.per_hour:.2f} {self.currency} per hour ({self.chips} x {self.per_hour / self.chips:.4g})"


def read_prices(path: Path, order: Order, zones: Sequence[str]) -> dict[str, Price]:
    """Return the prices of an order by zone, as far as the list has them. Raises UserError if the file is no price list."""
    skus = _read(path)
    orders = [replace(order, tpu=replace(order.tpu, zone=zone)) for zone in zones]
    prices = {one.tpu.zone: _price(skus, one) for one in orders}
    return {zone: price for zone, price in prices.items() if price}


def _read(path: Path) -> tuple[_Sku, ...]:
    try:
        if path.stat().st_size > _LIMIT:
            raise UserError(f"--prices: {path} has more than {_LIMIT >> 20} MiB; it is no price list")
        answer = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"--prices: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"--prices: {path} is not JSON{_HOW}") from None
    try:
        return _List.model_validate({"skus": answer} if isinstance(answer, list) else answer).skus
    except ValidationError as invalid:
        key = ".".join(map(str, invalid.errors()[0]["loc"]))
        raise UserError(f"--prices: {path} is no price list: {short(key)} is missing or wrong{_HOW}") from None


def _price(skus: Sequence[_Sku], order: Order) -> Price | None:
    """Return the price of an order; None if the list does not have it. The highest one, if there are several."""
    prices = [price for sku in skus if _matches(sku, order) for price in _prices(sku)]
    if not prices:
        return None
    most = max(prices, key=lambda price: price.units + price.nanos / 1e9)
    chips = order.slice.chips
    return Price(chips * (most.units + most.nanos / 1e9), most.currency_code, chips)


_HOW = (
    "; save the answer of https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus "
    "(https://cloud.google.com/billing/v1/how-tos/catalog-api)"
)


def _matches(sku: _Sku, order: Order) -> bool:
    name = _NAMES.get(order.generation)
    text = sku.description
    if (
        name is None
        or order.tpu.region not in sku.service_regions
        or not re.search(rf"Tpu[ -]?{name}\b", text, re.IGNORECASE)
    ):
        return False
    is_spot = bool(_SPOT.search(text)) or sku.category.usage_type == "Preemptible"
    is_flex = bool(_FLEX.search(text))
    is_other = bool(_OTHER.search(text)) or sku.category.usage_type.startswith("Commit")
    return {
        Cost.SPOT: is_spot and not is_other,
        Cost.ON_DEMAND: not is_spot and not is_other,
        Cost.FLEX: is_flex and not is_spot,
        Cost.RESERVED: False,
    }[order.cost]


def _prices(sku: _Sku) -> list[_Money]:
    expressions = [one.pricing_expression for one in sku.pricing_info if one.pricing_expression.usage_unit == "h"]
    return [rate.unit_price for one in expressions for rate in one.tiered_rates]
