FROM python:3.11-slim
WORKDIR /kvdist
COPY . .
RUN pip install --quiet --no-cache-dir -c constraints.txt .
CMD ["python", "examples/01_walkthrough.py"]
