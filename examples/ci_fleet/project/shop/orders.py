"""From a cart to an order."""

from __future__ import annotations

from collections.abc import Mapping

from shop.carts import Cart
from shop.prices import shown
from shop.stock import OutOfStockError, Stock

__all__ = ("place",)


def place(cart: Cart, stock: Stock, prices: Mapping[str, int]) -> str:
    """Take what is in a cart from the stock, all of it or nothing; the line for the receipt."""
    taken: list[tuple[str, int]] = []
    try:
        for thing, number in cart.things.items():
            stock.take(thing, number)
            taken.append((thing, number))
    except OutOfStockError:
        for thing, number in taken:
            stock.add(thing, number)
        raise
    return f"{sum(cart.things.values())} things, {shown(cart.total(prices))}"
