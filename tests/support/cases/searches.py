"""What programs that search in processes of their own begin with, beside tests of them."""

PREFER = """
from loma.tuning import search

def prefer(kind):
    "Nothing but the first such choice is tried, and found to be twice as fast."
    all_neighbours = search.neighbours
    def neighbours(taken, choices, model):
        found = [n for n in all_neighbours(taken, choices, model) if n.taken]
        return [n for n in found if all(name.startswith(kind) for name in n.taken)][:1]
    search.neighbours = neighbours
    search.Search._ratio = lambda *_: 0.5
    search.Search._confirmed = lambda *_: (0.5, 0.01)
"""
