"""How many examples a property is tried with."""

from hypothesis import settings

USUAL = 100  # examples of a property that asks for no number


def in_proportion(count):
    """So many where the profile has the usual number of examples; in proportion, at least five, elsewhere."""
    return max(5, count * settings.default.max_examples // USUAL)


def examples(count, **options):
    """Settings of so many examples, `in_proportion`."""
    return settings(max_examples=in_proportion(count), **options)
