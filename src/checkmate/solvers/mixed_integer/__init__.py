"""Mixed-integer programs and the solvers that can solve them: HiGHS, CBC, Gurobi."""
