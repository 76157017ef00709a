"""From values to text: the Stack to Compose, the policy to the sidecar files."""
