"""The methods of Checkmate (Jain et al., MLSys 2020): the integer program, and its relaxation with two-phase rounding."""
