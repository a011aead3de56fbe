"""Generators of reasoning-gym that may be asked: a grader that evaluates text can be forged."""

# Of the 106 generators of 0.1.25 those that draw the same twice, whose own answer is worth everything after
# being stored as JSON and asked of a fresh grader, that pay nothing for garbage, constants or clues, and
# whose modules evaluate no text: measured on 12 questions of each.
GENERATORS = (
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "base_conversion", "bf", "binary_alternation",
    "caesar_cipher", "calendar_arithmetic", "chain_sum", "circuit_logic",
    "color_cube_rotation", "count_bits", "count_primes", "course_schedule",
    "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice", "emoji_mystery",
    "family_relationships", "fraction_simplification", "futoshiki", "game_of_life", "gcd",
    "group_anagrams", "gsm_symbolic", "isomorphic_strings", "jugs", "kakurasu", "knights_knaves",
    "largest_island", "lcm", "leg_counting", "letter_counting", "letter_jumble", "list_functions",
    "mahjong_puzzle", "manipulate_matrix", "maze", "modulo_grid", "needle_haystack",
    "number_filtering", "number_format", "number_sequence", "palindrome_generation",
    "palindrome_partitioning", "path_star", "polynomial_equations", "pool_matrix", "power_function",
    "products", "quantum_lock", "ransom_note", "rectangle_count", "rotate_matrix", "rotten_oranges",
    "self_reference", "sentence_reordering", "shortest_path", "simple_equations", "simple_geometry",
    "string_manipulation", "string_splitting", "string_synthesis", "survo", "syllogism",
    "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder", "word_sequence_reversal",
    "word_sorting", "zebra_puzzles",
)
