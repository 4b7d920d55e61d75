"""Mixed-integer programs and what solves them: HiGHS (here or in a process of its own), CBC, Gurobi."""
