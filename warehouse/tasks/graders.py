"""Packages that grade tasks of some kinds: `score` needs them installed; nothing is imported to check."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from warehouse.store.errors import StageError

# By kind of task: the package, with a version that is part of the scorer's identity, and how to install it.
GRADERS = {
    "math": ("math-verify", "pip install 'rollhouse[math]'"),
    "reasoning-gym": ("reasoning-gym", "pip install 'rollhouse[reasoning-gym]', then pip install --no-deps "
                                       "reasoning-gym==0.1.25"),
    "verifiers": ("verifiers", "pip install 'rollhouse[verifiers]'"),
}
# Of the 106 generators of 0.1.25, those that are reproducible, give full reward to their own answer also
# after a round trip through JSON and a fresh grader, give none for garbage, and evaluate no text in their
# modules: measured on 12 questions of each.
GENERATORS = (
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "base_conversion", "bf", "binary_alternation",
    "caesar_cipher", "calendar_arithmetic", "chain_sum", "circuit_logic", "coin_flip",
    "color_cube_rotation", "complex_arithmetic", "count_bits", "count_primes", "course_schedule",
    "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice", "emoji_mystery",
    "family_relationships", "fraction_simplification", "futoshiki", "game_of_life", "gcd",
    "group_anagrams", "gsm_symbolic", "isomorphic_strings", "jugs", "kakurasu", "knights_knaves",
    "largest_island", "lcm", "leg_counting", "letter_counting", "letter_jumble", "list_functions",
    "mahjong_puzzle", "manipulate_matrix", "maze", "mini_sudoku", "modulo_grid", "needle_haystack",
    "number_filtering", "number_format", "number_sequence", "palindrome_generation",
    "palindrome_partitioning", "path_star", "polynomial_equations", "pool_matrix", "power_function",
    "products", "quantum_lock", "ransom_note", "rectangle_count", "rotate_matrix", "rotten_oranges",
    "self_reference", "sentence_reordering", "shortest_path", "simple_equations", "simple_geometry",
    "string_manipulation", "string_splitting", "string_synthesis", "sudoku", "survo", "syllogism",
    "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder", "word_sequence_reversal",
    "word_sorting", "zebra_puzzles",
)


def check_generator(name: str, where: str) -> None:
    """StageError for a generator of reasoning-gym that has no grader known to be safe.

    A grader that evaluates the text of an answer would run it in the process of the verdict, which could then
    be forged.
    """
    if name not in GENERATORS:
        raise StageError(f"{where}: '{name}' is not among the generators of reasoning-gym that are the same "
                         "every time, survive being stored, pay nothing for garbage and evaluate no text. "
                         f"Those are {', '.join(GENERATORS)}.")


def grader_versions(kinds: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Versions of the packages that grade tasks of the kinds, and a sentence for each that is missing."""
    versions, missing = {}, []
    for kind in sorted(GRADERS.keys() & set(kinds)):
        package, install = GRADERS[kind]
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing.append(f"Tasks of kind {kind} are graded by {package}, which is not installed. "
                           f"Run {install}.")
    return versions, missing
