"""Deliveries at night."""

# ruff: noqa: PT009 - this project needs nothing but Python itself

import time
import unittest

from shop.stock import Stock


class LongNight(unittest.TestCase):
    def test_every_delivery_is_counted(self) -> None:
        stock = Stock()
        for _ in range(50):
            time.sleep(0.02)  # the next lorry
            stock.add("pears", 2)
        self.assertEqual(stock.count("pears"), 100)
