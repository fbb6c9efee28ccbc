# Two images with fdbqueue and the FoundationDB client library of the very server image that they talk to.
# `tools` has the command line, the web page and the metrics; `jupyter` adds Java, Spark and Jupyter.
FROM foundationdb/foundationdb:7.3.77 AS fdb

FROM python:3.12.11-slim-bookworm AS tools

RUN apt-get update \
    && apt-get install -y --no-install-recommends socat \
    && rm -rf /var/lib/apt/lists/*

COPY --from=fdb /usr/lib/libfdb_c.so /usr/lib/libfdb_c.so
COPY --from=fdb /usr/bin/fdbcli /usr/bin/fdbcli

ENV HOME=/home/jovyan
WORKDIR /home/jovyan/fdbqueue

# The dependencies first: they change less often than the code, and take most of the time.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir fdbqueue layers \
    && touch fdbqueue/__init__.py layers/__init__.py \
    && pip install --no-cache-dir -e '.[web,metrics]' 'foundationdb<7.4'
COPY fdbqueue ./fdbqueue
COPY layers ./layers
COPY containers/run.sh /usr/local/bin/run
COPY containers/fdb.cluster /home/jovyan/fdb.cluster
# The containers run as any user. The client library writes changes of the coordinators back into the cluster's file.
RUN chmod -R a+rwX /home/jovyan && chmod a+rx /usr/local/bin/run
USER 1000:1000
WORKDIR /home/jovyan
ENTRYPOINT ["run"]
CMD ["fdbqueue", "--help"]

FROM tools AS jupyter

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
RUN cd fdbqueue && pip install --no-cache-dir -e '.[notebook]' && chmod -R a+rwX /home/jovyan
USER 1000:1000
# Listens inside the containers' own network; compose publishes the port on the host's loopback only.
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--notebook-dir=/home/jovyan/notebooks"]
