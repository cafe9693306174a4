"""Many customers, one shelf. Like most projects, this one has tests that take their time."""

# ruff: noqa: PT009 - this project needs nothing but Python itself

import time
import unittest

from shop.carts import Cart
from shop.orders import place
from shop.stock import OutOfStockError, Stock


class BusyDay(unittest.TestCase):
    def test_what_is_sold_and_what_is_left_is_what_there_was(self) -> None:
        stock, sold = Stock(pears=100), 0
        for customer in range(60):
            time.sleep(0.02)  # somebody thinks it over
            cart = Cart()
            cart.put("pears", 1 + customer % 3)
            try:
                place(cart, stock, {"pears": 50})
            except OutOfStockError:
                continue
            sold += cart.things["pears"]
        self.assertEqual(sold + stock.count("pears"), 100)
