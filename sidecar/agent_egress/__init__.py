"""The Python inside the egress boundary: policy, receipts, squid relay, DNS filter, control; the host imports it too."""
