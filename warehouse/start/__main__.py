"""Print the folder of the package's data: the demo's model, options and tasks, and the packages for a CPU.

    pip install --no-deps -r "$(python -m warehouse.start)/requirements-cpu.txt"

Imports nothing but the standard library, because nothing else may be installed yet.
"""

from warehouse.start import DATA

if __name__ == "__main__":
    print(DATA)
