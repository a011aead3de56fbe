"""Print where the wheel's list of packages for a machine without a GPU lies.

    pip install --no-deps -r "$(python -m warehouse.start.cpu_set)"

Imports nothing but the standard library, as nothing else may be installed yet.
"""

from warehouse.start import CPU_SET

if __name__ == "__main__":
    print(CPU_SET)
