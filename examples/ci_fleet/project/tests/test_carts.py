"""A cart knows what it costs."""

# ruff: noqa: PT009, PT027 - this project needs nothing but Python itself

import unittest

from shop.carts import Cart


class Carts(unittest.TestCase):
    def test_a_total_has_tax(self) -> None:
        cart = Cart()
        cart.put("pears", 2)
        cart.put("bread")
        self.assertEqual(cart.total({"pears": 50, "bread": 300}), 476)

    def test_nothing_cannot_be_put_in(self) -> None:
        with self.assertRaises(ValueError):
            Cart().put("pears", 0)
