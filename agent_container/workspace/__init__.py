"""The project's files on their way into a sandbox and the work on its way back.

`tree` looks at a directory, `mounts` says what may be mounted, `plan` which mounts a session gets, `transfer` fills
and empties volumes, `result` brings work into the user's repository. Git runs in throw-away containers alone
(`throwaway`), but for the fetch of a checked bundle.
"""
