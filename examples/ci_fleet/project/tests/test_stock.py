"""The stock never goes below zero."""

# ruff: noqa: PT009, PT027 - this project needs nothing but Python itself

import unittest

from shop.stock import OutOfStockError, Stock


class Shelves(unittest.TestCase):
    def test_what_was_delivered_can_be_taken(self) -> None:
        stock = Stock(pears=2)
        stock.add("pears", 3)
        stock.take("pears", 5)
        self.assertEqual(stock.count("pears"), 0)

    def test_more_than_there_is_cannot_be_taken(self) -> None:
        stock = Stock(pears=2)
        with self.assertRaises(OutOfStockError):
            stock.take("pears", 3)
        self.assertEqual(stock.count("pears"), 2)
