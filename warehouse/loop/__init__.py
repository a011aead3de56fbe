"""The loop over the stages: which command comes next, by the state of the run. Imports no stage."""
