"""Which clues are needed: CP-SAT proves that they leave one answer, and those it does without are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from ortools.sat.python import cp_model

Literal = int  # a fact by its number from 1 on, or its negation: minus that number
Clause = Sequence[Literal]  # at least one of these holds


class World:
    """Facts that are true or false, and the clauses that hold in every world."""

    def __init__(self) -> None:
        self.num_facts = 0
        self.rules: list[Clause] = []

    def facts(self, count: int) -> list[Literal]:
        """New facts."""
        self.num_facts += count
        return list(range(self.num_facts - count + 1, self.num_facts + 1))

    def exactly_one(self, facts: Sequence[Literal]) -> None:
        """One of the facts holds, and no other."""
        self.rules.append(facts)
        self.rules += [(-first, -second) for place, first in enumerate(facts) for second in facts[:place]]


def needed_clues(
    world: World, clues: Sequence[Sequence[Clause]], answer: Iterable[Literal], rng: Random
) -> list[int] | None:
    """Indices of clues that together leave no other answer, and none of which can go; None if all do not do.

    `answer` are the facts that have to be known. The proof that another answer is impossible names the clues
    it used; of those, one after the other is tried without, in an order drawn by `rng`.
    """
    model = cp_model.CpModel()
    facts = [model.new_bool_var("") for _ in range(world.num_facts)]

    def literal(number: Literal) -> cp_model.LiteralT:
        return facts[number - 1] if number > 0 else ~facts[-number - 1]

    for clause in world.rules:
        model.add_bool_or(map(literal, clause))
    model.add_bool_or(literal(-fact) for fact in answer)
    said = [model.new_bool_var("") for _ in clues]
    for heard, clauses in zip(said, clues, strict=True):
        for clause in clauses:
            model.add_bool_or([~heard, *map(literal, clause)])
    places = {variable.index: place for place, variable in enumerate(said)}

    def proof(chosen: Sequence[int]) -> list[int] | None:
        model.clear_assumptions()
        model.add_assumptions([said[place] for place in chosen])
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.cp_model_presolve = False  # these four take longer than they spare, on facts so few
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.linearization_level = 0
        solver.parameters.symmetry_level = 0
        if solver.solve(model) != cp_model.INFEASIBLE:
            return None
        return [places[index] for index in solver.sufficient_assumptions_for_infeasibility()]

    kept = proof(range(len(clues)))
    if kept is None:
        return None
    rng.shuffle(kept)
    for place in list(kept):
        if place in kept:
            fewer = proof([other for other in kept if other != place])
            kept = kept if fewer is None else [other for other in kept if other in fewer]
    return sorted(kept)
