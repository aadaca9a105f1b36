//! SVG charts.

use crate::error::Problem;
use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fs;
use std::path::Path;
use weir_scheduler::sim::{Chart, ChartKind};

const SIZE: (u32, u32) = (800, 480);

/// Writes one SVG file per chart to `folder`, which is created if missing.
pub(crate) fn draw(folder: &Path, charts: &[Chart]) -> Result<()> {
    fs::create_dir_all(folder)
        .map_err(|error| Problem::new(format!("cannot make {}", folder.display())).because(error))?;
    for chart in charts {
        write(&folder.join(format!("{}.svg", chart.name)), chart)?;
    }
    Ok(())
}

/// Writes a chart as an SVG file.
pub(crate) fn write(path: &Path, chart: &Chart) -> Result<()> {
    let failed =
        |error: anyhow::Error| Problem::new(format!("cannot draw {}", path.display())).because(error);
    let mut svg = String::new();
    one(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), chart)
        .map_err(|error| failed(anyhow::anyhow!("{error}")))?;
    fs::write(path, svg).map_err(|error| failed(error.into()))?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn one(area: &Area<'_>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let points = chart.labels.len().max(1);
    let highest = chart.series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * 1.1 } else { 1.0 };
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..points as f64 - 0.5, 0.0..top)?;
    let label = |x: &f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a small number"
        )]
        let index = (*x >= 0.0 && (x - x.round()).abs() < 1e-6).then(|| x.round() as usize);
        index.and_then(|index| chart.labels.get(index)).cloned().unwrap_or_default()
    };
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .x_labels(2 * points + 1)
        .x_label_formatter(&label)
        .light_line_style(TRANSPARENT)
        .draw()?;
    let width = 0.8 / chart.series.len().max(1) as f64;
    for (index, (name, values)) in chart.series.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let at = |point: usize| point as f64 - 0.4 + width * index as f64;
        let series = match chart.kind {
            ChartKind::Bars => context.draw_series(values.iter().enumerate().map(|(point, value)| {
                Rectangle::new([(at(point), 0.0), (at(point) + 0.9 * width, *value)], colour.filled())
            }))?,
            ChartKind::Lines => context.draw_series(LineSeries::new(
                values.iter().enumerate().map(|(point, value)| (point as f64, *value)),
                colour.stroke_width(2),
            ))?,
        };
        series
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
    }
    context.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_shows_title_labels_and_all_series() {
        let folder = tempfile::tempdir().unwrap();
        let mut chart = Chart {
            name: "waits".into(),
            title: "Waits & more".into(),
            x: "policy".into(),
            y: "s".into(),
            labels: vec!["lb".into(), "lalb".into()],
            series: vec![("ResNet".into(), vec![1.0, 2.0]), ("BERT".into(), vec![0.0, 3.5])],
            kind: ChartKind::Bars,
        };
        draw(&folder.path().join("new"), std::slice::from_ref(&chart)).unwrap();
        let svg = fs::read_to_string(folder.path().join("new/waits.svg")).unwrap();
        for text in ["Waits &amp; more", "lalb", "ResNet", "BERT"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        chart.kind = ChartKind::Lines;
        chart.series = Vec::new();
        draw(folder.path(), &[chart]).unwrap();
    }
}
