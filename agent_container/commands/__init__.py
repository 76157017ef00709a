"""What users ask for, one module a verb: recipes that return typed results and never print or prompt."""
