import unittest

from slugs import slugify, unique


class SlugsTest(unittest.TestCase):
    def test_words_are_joined(self) -> None:
        self.assertEqual(slugify("A quiet afternoon"), "a-quiet-afternoon")

    def test_punctuation_is_dropped(self) -> None:
        self.assertEqual(slugify("Rain, again: day 3!"), "rain-again-day-3")

    def test_spaces_do_not_double(self) -> None:
        self.assertEqual(slugify("  so   much space "), "so-much-space")

    def test_a_taken_slug_gets_a_number(self) -> None:
        self.assertEqual(unique("rain", {"rain", "rain-2"}), "rain-3")


if __name__ == "__main__":
    unittest.main()
