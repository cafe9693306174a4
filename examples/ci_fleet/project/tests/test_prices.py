"""Prices are right to the cent."""

# ruff: noqa: PT009, PT027 - this project needs nothing but Python itself

import unittest

from shop.prices import discounted, shown, with_tax


class Prices(unittest.TestCase):
    def test_tax_is_rounded_to_the_nearest_cent(self) -> None:
        self.assertEqual([with_tax(each) for each in (0, 1, 2, 3, 100)], [0, 1, 2, 4, 119])

    def test_a_discount_is_never_more_than_everything(self) -> None:
        self.assertEqual([discounted(200, each) for each in (0, 25, 100)], [200, 150, 0])
        with self.assertRaises(ValueError):
            discounted(200, 101)

    def test_cents_have_two_digits(self) -> None:
        self.assertEqual([shown(each) for each in (5, 1205)], ["0.05", "12.05"])
