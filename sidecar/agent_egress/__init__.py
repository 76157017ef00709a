"""The Python inside the egress boundary: policy, receipts, squid relay, DNS filter, control. Standard library only; the host imports it too."""
