"""A scripted agent: no model and no key. It does a small real task, tries to leave the sandbox, and says what it saw.

For a first look at the tool and for tests of everything around an agent: besides its one task it has behaviours that
real agents show on bad days, chosen by the task's words (see `behaviours`).
"""

VERSION = "1.0"
