"""Models under many plans: which, built beforehand, timed later."""
