"""Every git command that touches a tree which an agent could write, run in a throw-away container: no network, no
capabilities, trees read-only.

It owns carrying a project into a volume (`pack` where the project is mounted, `unpack` and `unpack-gitdir` where
the volume is) and the work back (`collect`, `review`). Nothing that stands in a tree's own git configuration takes
effect, not even in here: git runs on a private repository in scratch space, whose configuration is written from an
allowlist and which borrows the tree's objects. Reading and writing are separate programs in separate containers, so
that a hostile volume never meets the project's files. What the results mean, and where they go, is the host's
business. Standard library only, Python 3.9 or newer.
"""
