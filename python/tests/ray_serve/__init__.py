"""Applications of eagleray.serve on a real cluster, which the tests in test/ray start.

    python -m unittest tests.ray_serve.quick

RAY_ADDRESS and EAGLERAY_NODE_IP say where the cluster is, EAGLERAY_BINARY what serves, and
RAY_DASHBOARD has its REST API.
"""
