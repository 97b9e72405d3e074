"""Number of examples that a property is tried with."""

from hypothesis import settings

USUAL = 100  # examples of a property that asks for no number


def examples(count, **options):
    """Settings of so many examples where the profile has the usual number; in proportion, at least five,
    elsewhere.
    """
    return settings(max_examples=max(5, count * settings.default.max_examples // USUAL), **options)
