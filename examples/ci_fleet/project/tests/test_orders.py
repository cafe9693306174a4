"""An order takes everything, or nothing."""

# ruff: noqa: PT009, PT027 - this project needs nothing but Python itself

import unittest

from shop.carts import Cart
from shop.orders import place
from shop.stock import OutOfStockError, Stock

PRICES = {"pears": 50, "bread": 300}


class Orders(unittest.TestCase):
    def test_an_order_empties_the_shelf(self) -> None:
        cart, stock = Cart(), Stock(pears=2, bread=1)
        cart.put("pears", 2)
        self.assertEqual(place(cart, stock, PRICES), "2 things, 1.19")
        self.assertEqual(stock.count("pears"), 0)

    def test_an_order_that_cannot_be_filled_takes_nothing(self) -> None:
        cart, stock = Cart(), Stock(pears=2)
        cart.put("pears")
        cart.put("bread")
        with self.assertRaises(OutOfStockError):
            place(cart, stock, PRICES)
        self.assertEqual(stock.count("pears"), 2)
