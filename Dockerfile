# The course with all that it needs, for the CPU. Once it is built, it needs no network.
#
#   docker build -t attention .
#   docker run --rm -p 8888:8888 attention          then open the address that it prints
#   docker run --rm -it --network none attention python -m tools test
#
# What a reader changes is gone with the container, unless it lies outside:
#   docker run --rm -p 8888:8888 -v attention:/home/reader/attention attention
FROM python:3.13-slim

RUN useradd --create-home --uid 1000 reader && mkdir /home/reader/attention \
    && chown reader:reader /home/reader/attention
USER reader
WORKDIR /home/reader/attention
ENV TORCH=cpu PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1

# What decides which packages are needed comes first: a changed notebook does not install them again.
COPY --chown=reader:reader requirements*.txt pyproject.toml ./
COPY --chown=reader:reader tools/*.py tools/
RUN python -m tools install dev

COPY --chown=reader:reader . .
EXPOSE 8888
# The first process of a container does not hear `docker stop` otherwise, which then waits.
STOPSIGNAL SIGINT
CMD ["python", "-m", "tools", "lab", "--no-browser", "--ip=0.0.0.0", "--ServerApp.port_retries=0"]
